"""An optimizer as it travels: its registered name and its plain parameters. Nothing is pickled.

Parameters are the numbers, truth values, texts and lists of them among the attributes of the optimizer object. The
server constructs an object of the registered class from them and sets the rest as attributes, if the new object has
attributes of these names. What a schedule, a multiplier or a count makes of the learning rate is worked out by the
worker and travels as settings of each key (:mod:`ps.mxnet.optimizer_client`).

A few optimizers change numbers of their own with every update of any key (:data:`EVOLVING`): the servers, who
see only some of the keys, are told them with the settings.
"""

from __future__ import annotations

import inspect
from typing import Any, Iterator, Optional, Union

import msgspec
import mxnet as mx
import numpy as np

from ps.errors import SettingsError

__all__ = [
    "Description",
    "EVOLVING",
    "KeySettings",
    "Plain",
    "build",
    "describe",
    "needs_whole_tensors",
    "parameters",
    "plain_attributes",
    "registered_name",
    "set_parameters",
    "state_leaves",
]

Plain = Union[None, bool, int, float, str, list[Union[None, bool, int, float, str]]]

#: Attributes that are the worker's own business: their effect travels as settings of each key.
_OWN = frozenset(
    ["begin_num_update", "idx2name", "sym_info", "param_dict", "lr_mult", "wd_mult", "lr_scheduler", "num_update"]
    + ["_index_update_count", "_all_index_update_counts", "allow_np_array", "aggregate_num"]
)
#: Attributes that change with every update of any key, by class name.
EVOLVING = {"nadam": ("m_schedule",), "lars": ("cur_lr", "last_lr")}

#: Of MXNet's optimizers those whose update of one element looks at no other element.
_ELEMENTWISE = frozenset(
    ["sgd", "ccsgd", "signum", "ftml", "dcasgd", "nag", "sgld", "adam", "adagrad", "rmsprop", "adadelta", "ftrl"]
    + ["adamax", "nadam", "test"]
)


class Description(msgspec.Struct, frozen=True):
    """A registered name and the parameters."""

    name: str
    parameters: dict[str, Plain]


class KeySettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What worker 0 had set for one key when it called ``push``, as far as that has changed since its last push.

    ``key`` and ``name`` are what the optimizer knows the tensor by, ``count`` how many updates it has had before this
    one; the first settings of a key bring them. ``parameters`` holds attributes of the optimizer,
    with the learning rate that its schedule gives for this update; ``evolving`` the numbers of :data:`EVOLVING`.
    ``absent`` says that worker 0 has no gradient for the key this time, and pushes -0.0.
    """

    key: Union[None, int, str] = None
    name: Optional[str] = None
    count: Optional[int] = None
    lr_mult: Optional[float] = None
    wd_mult: Optional[float] = None
    parameters: dict[str, Plain] = {}
    evolving: dict[str, Plain] = {}
    absent: bool = False


def registered_name(optimizer: Any) -> str:
    """Return the name under which ``mx.optimizer.create`` knows the class of ``optimizer``."""
    return type(optimizer).__name__.lower()


def needs_whole_tensors(optimizer: Any) -> bool:
    """Return whether an update looks at more than one element at a time, such as at a norm.

    A class of the user's own is taken to do so unless it has the attribute ``elementwise = True``.
    """
    if type(optimizer).__module__.startswith("mxnet."):
        return registered_name(optimizer) not in _ELEMENTWISE
    return not getattr(optimizer, "elementwise", False)


def parameters(optimizer: Any) -> dict[str, Plain]:
    """Return the plain attributes of ``optimizer``, other than those that the worker evaluates itself."""
    skip = _OWN.union(EVOLVING.get(registered_name(optimizer), ()))
    return {name: value for name, value in plain_attributes(optimizer).items() if name not in skip}


def plain_attributes(thing: Any) -> dict[str, Plain]:
    """Return the attributes of ``thing`` that are numbers, truth values, texts, None, or lists of such."""
    found: dict[str, Plain] = {}
    for name, value in vars(thing).items():
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, float, str)):
            found[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
            found[name] = list(value)
    return found


def describe(optimizer: Any) -> Description:
    """Return what travels of ``optimizer``.

    Raises
    ------
    SettingsError
        It is no optimizer, or its class is not registered, so no server could find it.
    """
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise SettingsError(
            f"set_optimizer: expected an mx.optimizer.Optimizer, such as mx.optimizer.create returns, not {optimizer!r}"
        )
    name = registered_name(optimizer)
    if mx.optimizer.Optimizer.opt_registry.get(name) is not type(optimizer):
        raise SettingsError(
            f"set_optimizer: {type(optimizer).__name__} is not registered: decorate the class with"
            " @mx.optimizer.Optimizer.register, in a module that the servers import too (AUTOBYTE_OPTIMIZER_MODULES)"
        )
    return Description(name, parameters(optimizer))


def build(description: Description) -> Any:
    """Return a new optimizer with the parameters of ``description``.

    Raises
    ------
    SettingsError
        No such class is registered here, or it does not take these parameters; the text names it.
    """
    name = description.name
    cls = mx.optimizer.Optimizer.opt_registry.get(name)
    if cls is None:
        raise SettingsError(
            f"optimizer {name!r} is not registered here; for a class of your own, start the servers with"
            " AUTOBYTE_OPTIMIZER_MODULES (or --optimizer-module) naming the module that registers it"
        )
    values = dict(description.parameters)
    accepted = _constructor_parameters(cls)
    arguments = {key: value for key, value in values.items() if key in accepted}
    if "lr" in values and "learning_rate" in accepted:
        arguments["learning_rate"] = values["lr"]
    try:
        optimizer = cls(**arguments)
    except Exception as error:
        raise SettingsError(f"optimizer {name!r} cannot be made from {arguments}: {error!r}") from error
    optimizer.lr_scheduler = None
    optimizer.allow_np_array = True
    set_parameters(optimizer, values)
    return optimizer


def set_parameters(optimizer: Any, values: dict[str, Plain]) -> None:
    """Set attributes of ``optimizer``.

    Raises
    ------
    SettingsError
        It has no attribute of such a name; none was set.
    """
    attributes = vars(optimizer)
    unknown = [key for key in values if key not in attributes or key in _OWN]
    if unknown:
        raise SettingsError(f"optimizer {registered_name(optimizer)!r} has no parameter {unknown[0]!r} here")
    for key, value in values.items():
        old = attributes[key]
        setattr(optimizer, key, tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value)


def state_leaves(state: Any) -> Iterator[Any]:
    """Yield the arrays of an optimizer's state, which is None, an array, or a tuple or list of states.

    Raises
    ------
    SettingsError
        There is something else in it.
    """
    if isinstance(state, (tuple, list)):
        for item in state:
            yield from state_leaves(item)
    elif isinstance(state, mx.nd.NDArray):
        yield state
    elif state is not None:
        raise SettingsError(f"a state of {type(state).__name__}: servers keep only arrays, and tuples or lists of them")


def _constructor_parameters(cls: type) -> set[str]:
    """Return the names that the constructors of ``cls`` and its bases accept."""
    names: set[str] = set()
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None or base is object:
            continue
        kinds = inspect.signature(init).parameters.values()
        names.update(parameter.name for parameter in kinds if parameter.kind is not parameter.VAR_KEYWORD)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in kinds):
            break
    return names - {"self", "args"} - _OWN
