"""Forward and backward seconds from the events of a training loop."""

import mxnet as mx
import pytest

from ps.mxnet.timing import StepTimer


class Loop:
    """Plays steps of a model of two gradients to a timer; ``at`` are the seconds of the events of one step."""

    def __init__(self):
        self.reports = []
        self.timer = StepTimer(lambda forward, backward: self.reports.append((forward, backward)))

    def step(self, record, forward_end, last_gradient, first_gradient, first_sum):
        self.timer.recorded(record)
        step = self.timer.backward()
        assert self.timer.pushed(0) is step
        assert self.timer.pushed(-1) is step
        self.timer.forward_ended(step, forward_end)
        self.timer.ready(step, last_gradient)
        self.timer.ready(step, first_gradient)
        self.timer.answered(step, -1, first_sum - 0.5)
        self.timer.answered(step, 0, first_sum)


def test_step_is_reported_when_the_next_one_begins_and_the_first_is_dropped():
    loop = Loop()
    loop.step(record=0, forward_end=9, last_gradient=10, first_gradient=12, first_sum=13)
    loop.step(record=1, forward_end=14, last_gradient=15, first_gradient=17, first_sum=18)
    assert loop.reports == []
    loop.step(record=2, forward_end=21, last_gradient=22, first_gradient=23, first_sum=24)
    assert loop.reports == [(1, 3)]  # forward began when the first sum was there: 13 to 14; backward: 14 to 17
    loop.timer.backward()
    assert loop.reports == [(1, 3), (3, 2)]


def test_forward_begins_with_record_where_the_host_is_late():
    loop = Loop()
    for start in (0, 10, 20):
        loop.step(start, start + 2, start + 3, start + 4, start + 5)
    assert loop.reports == [(2, 2)]


def test_gradients_that_come_after_the_next_step_has_begun_are_waited_for():
    loop = Loop()
    loop.step(0, 1, 2, 3, 4)
    step = loop.timer.backward()
    loop.timer.pushed(0)
    loop.timer.forward_ended(step, 6)
    loop.timer.backward()
    assert loop.reports == []
    loop.timer.ready(step, 9)
    assert loop.reports == [(2, 3)]


def test_losses_of_several_devices_are_one_step():
    loop = Loop()
    first = loop.timer.backward()
    assert loop.timer.backward() is first
    loop.timer.pushed(0)
    assert loop.timer.backward() is not first


def test_pushes_without_any_backward_are_no_step():
    assert Loop().timer.pushed(0) is None


def test_training_loop_reports_what_it_computed(store, worker):
    weight = mx.nd.ones((400, 400))
    weight.attach_grad()
    store.init(0, weight)
    for _ in range(4):
        with mx.autograd.record():
            loss = weight
            for _ in range(10):
                loss = mx.nd.dot(loss, weight) / 400
        loss.backward()
        store.pushpull(0, weight.grad)
        weight.grad.wait_to_read()
    assert len(worker.noted) == 2  # the first is dropped, the last not complete
    for forward_seconds, backward_seconds in worker.noted:
        assert 0 < forward_seconds < backward_seconds < 5


@pytest.mark.parametrize("how", ["method", "function", "keyword"])
def test_backward_works_as_before(store, how):
    x = mx.nd.ones(2)
    x.attach_grad()
    with mx.autograd.record(train_mode=False):
        y = x * 3
    if how == "method":
        y.backward(mx.nd.ones(2), retain_graph=False)
    elif how == "function":
        mx.autograd.backward([y])
    else:
        mx.autograd.backward(heads=y)
    assert x.grad.asnumpy().tolist() == [3, 3]


def test_mxnet_is_left_as_it_was():
    assert mx.autograd.record.__module__ == "mxnet.autograd"
    assert not hasattr(mx.autograd.record, "__wrapped__")
