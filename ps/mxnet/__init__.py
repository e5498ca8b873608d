"""AutoByte for MXNet: import this, then use the store ``dist_sync_autobyte`` (short: ``dist_autobyte``).

>>> import ps.mxnet                                                      # doctest: +SKIP
>>> import mxnet as mx
>>> ps.mxnet.broadcast_parameters(net.collect_params())
>>> trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', kvstore='dist_sync_autobyte', update_on_kvstore=False)

On Python 3.12 import it before mxnet, which it makes importable there. The import registers the stores; the first of
them (or the first broadcast) joins the job that the ``DMLC_*`` variables describe. Leaving it needs no call: it happens
at the end of the process.
"""

from ps.mxnet import compatibility

compatibility.prepare()

import mxnet  # noqa: E402

compatibility.check_version(mxnet.__version__)

from ps.mxnet import hooks, names, profiling, trainer  # noqa: E402
from ps.mxnet.broadcast import broadcast_parameters  # noqa: E402
from ps.mxnet.connection import close  # noqa: E402

__all__ = ["broadcast_parameters", "close"]

names.register()
hooks.install()
trainer.install()
profiling.install()
