"""When steps and their gradients begin and end, from the events of a training loop."""

import mxnet as mx
import pytest
from msgspec.structs import replace

from ps.layers import StepTimes
from ps.mxnet.timing import StepTimer


class Loop:
    """Plays steps of a model of two gradients to a timer; arguments are the seconds of the events of one step."""

    def __init__(self):
        self.reports = []
        self.timer = StepTimer(self.reports.append)

    def begin(self, record):
        self.timer.recorded(record)
        step = self.timer.backward()
        return step, self.timer.pushed(0, 400), self.timer.pushed(-1, 100)

    def step(self, record, forward_end, last_gradient, first_gradient, first_sum):
        step, first, last = self.begin(record)
        assert first.step is step
        self.timer.forward_ended(step, forward_end)
        self.timer.ready(last, last_gradient)
        self.timer.ready(first, first_gradient)
        self.timer.answered(last, first_sum - 0.5)
        self.timer.answered(first, first_sum)


def test_step_is_reported_when_the_next_one_begins_and_the_first_is_dropped():
    loop = Loop()
    loop.step(record=0, forward_end=9, last_gradient=10, first_gradient=12, first_sum=13)
    loop.step(record=1, forward_end=14, last_gradient=15, first_gradient=17, first_sum=18)
    assert loop.reports == []
    second = StepTimes(
        priorities=(0, -1),
        sizes_bytes=(400, 100),
        ready_seconds=(3, 1),
        arrived_seconds=(1, 1.5),
        recorded_seconds=13,
    )
    loop.step(record=2, forward_end=21, last_gradient=22, first_gradient=23, first_sum=24)
    assert loop.reports == [second]
    loop.timer.backward()
    third = replace(second, ready_seconds=(2, 1), arrived_seconds=(3, 3.5), recorded_seconds=19)
    assert loop.reports == [second, third]


def test_gradients_that_come_after_the_next_step_has_begun_are_waited_for():
    loop = Loop()
    loop.step(0, 1, 2, 3, 4)
    step, first, last = loop.begin(record=5)
    loop.timer.ready(last, 8)
    loop.timer.forward_ended(step, 6)
    loop.timer.backward()
    assert loop.reports == []
    loop.timer.ready(first, 9)
    assert [report.ready_seconds for report in loop.reports] == [(3, 2)]


def test_sums_of_a_step_that_pushed_something_else_tell_nothing():
    loop = Loop()
    loop.timer.backward()
    only = loop.timer.pushed(0, 400)
    loop.timer.ready(only, 1)
    loop.timer.answered(only, 2)
    loop.step(0, 3, 4, 5, 6)
    loop.timer.backward()
    assert [report.arrived_seconds for report in loop.reports] == [()]


def test_losses_of_several_devices_are_one_step():
    loop = Loop()
    first = loop.timer.backward()
    assert loop.timer.backward() is first
    loop.timer.pushed(0, 400)
    assert loop.timer.backward() is not first


def test_pushes_without_any_backward_are_no_step():
    assert Loop().timer.pushed(0, 400) is None


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
    for step in worker.noted:
        assert (step.priorities, step.sizes_bytes) == ((0,), (4 * 400 * 400,))
        assert all(0 < seconds < 5 for seconds in (*step.arrived_seconds, *step.ready_seconds, step.recorded_seconds))


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
