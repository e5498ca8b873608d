"""The store's contract, against a worker whose partner pushes the same: every sum is a double."""

import mxnet as mx
import pytest

from ps.errors import PeerLost, TensorError
from ps.messages import Mode, SpanKind


def ones(*shape, **options):
    return mx.nd.ones(shape, **options)


NAMES = [
    "dist_autobyte",
    "dist_sync_autobyte",
    "dist_device_sync_autobyte",
    "dist_sync_device_autobyte",
    "dist_async_autobyte",
    "dist_device_async_autobyte",
    "dist_async_device_autobyte",
]


# --------------------------------------------------------------------------------- what it says of itself


def test_mxnet_creates_it_by_each_of_its_names(worker):
    types = {
        "dist_autobyte": "dist_sync_autobyte",
        "Dist_AutoByte": "dist_sync_autobyte",
        **{name: name for name in NAMES if name != "dist_autobyte"},
    }
    for name, expected in types.items():
        store = mx.kv.create(name)
        assert isinstance(store, mx.kvstore.KVStore)
        assert (store.type, store.rank, store.num_workers) == (expected, 0, 2)
        store.init("a", ones(2))
        mode = Mode.ASYNC if "async" in name else Mode.SYNC
        assert [tensor.spec.mode for tensor in worker.tensors.values()][-1] is mode


@pytest.mark.parametrize("name", ["autobyte", "dist_autobyte_sync", "dist_sync_AutoBytes"])
def test_a_name_that_is_nearly_one_of_ours_is_an_error_that_lists_them(name):
    names = ", ".join(map(repr, NAMES))
    with pytest.raises(mx.MXNetError) as caught:
        mx.kv.create(name)
    assert str(caught.value) == f"there is no store {name!r}; AutoByte's are {names}"


def test_what_is_no_optimizer_updater_or_codec_is_refused_at_the_call(store):
    for optimizer in None, "sgd", mx.optimizer.SGD:
        with pytest.raises(mx.MXNetError, match="set_optimizer: expected an mx.optimizer.Optimizer, such as .*, not"):
            store.set_optimizer(optimizer)
    with pytest.raises(TypeError, match="set_updater: expected a function of key, sum and value, not None"):
        store._set_updater(None)
    with pytest.raises(mx.MXNetError, match="gradient compression: expected parameters such as .*, not None"):
        store.set_gradient_compression(None)


def test_it_can_update_but_has_no_states_before_an_optimizer_is_set(store):
    assert store.is_capable("optimizer")
    with pytest.raises(ValueError, match="unknown capability 'flight'"):
        store.is_capable("flight")
    for call in (store.save_optimizer_states, store.load_optimizer_states):
        with pytest.raises(mx.MXNetError, match="no optimizer is set: call set_optimizer first"):
            call("file")


def test_every_public_method_is_its_own(store):
    inherited = {
        name
        for name in dir(mx.kvstore.KVStore)
        if not name.startswith("__") and getattr(type(store), name) is getattr(mx.kvstore.KVStore, name)
    }
    assert inherited == {"OPTIMIZER", "kv_registry", "register"}


# ------------------------------------------------------------------------------------------ operations


def test_pushpull_gives_the_sum_and_leaves_the_pushed_value(store):
    store.init("a", ones(2) * 5)
    gradient, out = ones(2) * 2.5, ones(2)
    store.pushpull("a", gradient, out=out)
    assert out.asnumpy().tolist() == [5, 5]
    assert gradient.asnumpy().tolist() == [2.5, 2.5]


@pytest.mark.parametrize("out", ["none", "same"])
def test_pushpull_in_place_gives_the_sum(store, out):
    store.init(3, ones(2))
    gradient = ones(2) * 4
    store.pushpull(3, gradient, out=gradient if out == "same" else None)
    assert gradient.asnumpy().tolist() == [8, 8]


def test_pull_gives_the_first_value_then_each_sum_not_their_total(store):
    out = ones(3)
    store.init("a", ones(3) * 7)
    store.pull("a", out=out)
    assert out.asnumpy().tolist() == [7, 7, 7]
    for value, total in ((1.5, 3), (3, 6)):
        store.push("a", ones(3) * value)
        store.pull("a", out=out)
        assert out.asnumpy().tolist() == [total] * 3


def test_a_value_that_cannot_have_changed_is_not_fetched_again(store, worker):
    outs = [ones(2) for _ in range(3)]
    store.init("a", ones(2))
    store.pull("a", out=outs[0])
    store.pull("a", out=outs[1])
    store.pushpull("a", ones(2))
    store.pull("a", out=outs[2])
    assert [out.asnumpy().tolist() for out in outs] == [[1, 1], [1, 1], [2, 2]]
    assert [kind for kind, _, _ in worker.seen] == [SpanKind.PULL, SpanKind.PUSH_PULL]


def test_an_asynchronous_value_is_fetched_each_time(worker):
    store, out = mx.kv.create("dist_async_autobyte"), ones(2)
    store.init("a", ones(2))
    store.pull("a", out=out)
    store.pull("a", out=out)
    mx.nd.waitall()
    assert [kind for kind, _, _ in worker.seen] == [SpanKind.PULL, SpanKind.PULL_CHANGES]


def test_push_is_a_snapshot(store):
    store.init("a", ones(2))
    value, out = ones(2), ones(2)
    store.push("a", value)
    value[:] = 100
    store.pull("a", out=out)
    assert out.asnumpy().tolist() == [2, 2]
    assert value.asnumpy().tolist() == [100, 100]


def test_operations_on_one_key_keep_their_order_without_any_wait(store):
    store.init("a", ones(1))
    outs = []
    for round_ in range(100):
        outs.append(ones(1))
        store.push("a", ones(1) * round_, priority=round_)
        store.pull("a", out=outs[-1], priority=-round_)
    assert [out.asscalar() for out in outs] == [2 * round_ for round_ in range(100)]


def test_broadcast_initialises_and_delivers_to_every_device(store):
    outs = [ones(2, ctx=mx.cpu(0)), ones(2, ctx=mx.cpu(1))]
    store.broadcast(0, ones(2) * 3, outs)
    assert [out.asnumpy().tolist() for out in outs] == [[3, 3], [3, 3]]


def test_values_of_several_devices_are_one_push(store, worker):
    store.init(0, ones(2))
    gradients = [ones(2, ctx=mx.cpu(0)), ones(2, ctx=mx.cpu(1)) * 10]
    store.pushpull(0, gradients)
    assert [gradient.asnumpy().tolist() for gradient in gradients] == [[22, 22], [22, 22]]
    assert [kind for kind, _, _ in worker.seen] == [SpanKind.PUSH_PULL]


def test_lists_of_keys(store):
    outs = [ones(1), ones(1)]
    store.init(["a", "b"], [ones(1) * 2, ones(1) * 3])
    store.pull(["a", "b"], out=outs)
    assert [out.asscalar() for out in outs] == [2, 3]
    store.pushpull(["b", "a"], [ones(1) * 5, [ones(1), ones(1, ctx=mx.cpu(1))]], out=[[outs[0]], outs[1]], priority=4)
    assert [out.asscalar() for out in outs] == [10, 4]


def test_priority_is_passed_on(store, worker):
    store.init([0, 1], [ones(1), ones(1)])
    store.pushpull(0, ones(1), priority=0)
    store.pushpull(1, ones(1), priority=-1)
    mx.nd.waitall()
    assert sorted(priority for _, _, priority in worker.seen) == [-1, 0]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8"])
def test_dtypes(store, dtype):
    value = mx.nd.array([1, 2, 3], dtype=dtype)
    store.broadcast("a", value, value)
    store.pushpull("a", value)
    assert value.asnumpy().tolist() == [2, 4, 6]
    assert value.asnumpy().dtype.name == dtype


def test_transpose(store):
    value = mx.nd.arange(12).reshape((3, 4)).T
    store.init("a", value)
    out = mx.nd.zeros((4, 3))
    store.pushpull("a", value / 2, out=out)
    assert out.asnumpy().tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_arrays_without_elements_and_without_dimensions(store):
    with mx.util.np_shape(True):
        empty, scalar = mx.nd.zeros((0, 3)), mx.nd.ones(())
        store.broadcast(["e", "s"], [empty, scalar], [empty, scalar])
        store.pushpull(["e", "s"], [empty, scalar])
        store.push("e", empty)
        store.pull("e", out=empty)
        assert empty.asnumpy().shape == (0, 3)
        assert scalar.asnumpy() == 2


def test_numpy_interface_arrays(store):
    with mx.util.np_shape(True), mx.util.np_array(True):
        value = mx.np.ones((2, 2))
        store.broadcast("a", value, value)
        store.pushpull("a", [value])
        assert value.asnumpy().tolist() == [[2, 2], [2, 2]]


def test_recording_is_not_disturbed(store):
    weight = ones(2)
    weight.attach_grad()
    store.init("a", weight)
    with mx.autograd.record():
        loss = (weight * 3).sum()
        store.pushpull("a", ones(2), out=mx.nd.zeros((2,)))
        assert mx.autograd.is_recording()
    loss.backward()
    assert weight.grad.asnumpy().tolist() == [3, 3]


def test_barrier(store, worker):
    store.barrier()
    store._barrier()
    assert [kind for kind, _, _ in worker.seen] == ["barrier", "barrier"]


# ---------------------------------------------------------------------------------------- keys and errors


def test_int_and_str_keys_differ(store):
    out = ones(1)
    store.init([3, "3"], [ones(1) * 1, ones(1) * 2])
    store.pull(3, out=out)
    assert out.asscalar() == 1
    store.pull("3", out=out)
    assert out.asscalar() == 2


def test_two_stores_of_one_process_have_their_own_keys(store):
    other, out = mx.kv.create("dist_autobyte"), ones(1)
    store.init(0, ones(1) * 1)
    other.init(0, ones(1) * 2)
    store.pull(0, out=out)
    assert out.asscalar() == 1


def test_second_init_is_an_error_and_changes_nothing(store):
    out = ones(1)
    store.init("a", ones(1))
    with pytest.raises(TensorError, match=r"init\('a'\): worker 0 has initialised this key before"):
        store.init(["b", "a"], [ones(1), ones(1) * 5])
    store.pull("a", out=out)
    assert out.asscalar() == 1
    store.init("b", ones(1))


def test_unknown_key_is_an_error_and_the_store_is_usable_afterwards(store):
    store.init("a", ones(1))
    with pytest.raises(TensorError, match=r"pushpull\('b'\): worker 0 has not initialised this key \(it has: 'a'\)"):
        store.pushpull("b", ones(1))
    gradient = ones(1)
    store.pushpull("a", gradient)
    assert gradient.asscalar() == 2


def test_wrong_shape_or_dtype_is_an_error_naming_both(store):
    store.init("a", ones(2))
    with pytest.raises(
        TensorError, match=r"push\('a'\): worker 0 gave shape \(3,\) and dtype float32; .* shape \(2,\)"
    ):
        store.push("a", ones(3))
    with pytest.raises(TensorError, match=r"push\('a'\): worker 0 gave .* dtype float16; .* dtype float32"):
        store.push("a", ones(2, dtype="float16"))
    with pytest.raises(TensorError, match=r"pull\('a'\): worker 0 gave shape \(3,\)"):
        store.pull("a", out=ones(3))


def test_pull_converts_to_the_dtype_of_the_output(store):
    out = ones(2, dtype="float16")
    store.init("a", ones(2) * 3)
    store.pull("a", out=out)
    assert out.asnumpy().tolist() == [3, 3]
    assert out.asnumpy().dtype.name == "float16"


def test_arguments_that_are_no_keys_or_arrays(store):
    store.init("a", ones(1))
    with pytest.raises(TypeError, match="a key is an int or a str, not 1.5"):
        store.init(1.5, ones(1))
    with pytest.raises(TypeError, match=r"push\('a'\): expected an NDArray or a list of them, not float"):
        store.push("a", 1.0)
    with pytest.raises(TypeError, match=r"pull\('a'\): expected an NDArray or a list of them, not NoneType"):
        store.pull("a")
    with pytest.raises(ValueError, match="2 keys need a list of as many values, not list of length 1"):
        store.push(["a", "b"], [ones(1)])
    with pytest.raises(ValueError, match=r"push\('a'\): the list of NDArrays is empty"):
        store.push("a", [])


def test_failed_operation_raises_its_own_error_to_whoever_waits_for_the_result(store, worker):
    store.init("a", ones(2))
    gradient = ones(2)
    worker.fail(PeerLost("push_pull('a'), round 1: worker 1 was lost: killed"))
    store.pushpull("a", gradient)
    with pytest.raises(PeerLost, match="worker 1 was lost"):
        (gradient + 1).asnumpy()


def test_with_the_naive_engine_results_are_there_and_errors_are_raised_by_the_call(script):
    result = script(
        """
from ps.errors import PeerLost
store = mx.kv.create('dist_sync_autobyte')
store.init('a', mx.nd.ones(2))
gradient = mx.nd.ones(2) * 3
store.pushpull('a', gradient)
print(gradient.asnumpy().tolist())
worker.fail(PeerLost('worker 1 was lost'))
try:
    store.pushpull('a', gradient)
except PeerLost as error:
    print(error)
""",
        MXNET_ENGINE_TYPE="NaiveEngine",
    )
    assert result.stdout == "[6.0, 6.0]\nworker 1 was lost\n", result.stderr
