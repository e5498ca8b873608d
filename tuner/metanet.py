"""The meta-network: runtime statistics in, predicted speedup of every candidate out.

What it predicts is the logarithm of a step time, as the closed form's (:class:`~tuner.predictor.RulePredictor`) plus
what an ensemble of networks has learned to add to it. The difference between the configuration in force and a candidate
is the log speedup: 0 for what is in force, and consistent between candidates. Where the members disagree, or where a
candidate looks unlike what is in force, the spread says so.

Three lives:

* **shipped**: trained on simulated jobs (:mod:`tuner.training`), one file of arrays beside this package. It is read
  without pickle, and only if its SHA-256 is the one that stands in the file beside it;
* **in a job**: :meth:`MetaNetwork.fine_tune` corrects the last layer by what switches really brought. A Bayesian linear
  regression on the last hidden layer, whose prior is the shipped weights: few samples change little, and only in the
  directions that they speak of. It starts from the shipped weights each time, so a sample that is no longer true is
  forgotten by leaving it out;
* **between jobs**: :meth:`MetaNetwork.save` writes what a job has learned as such a file again; features have no units,
  so it means something to another model on another cluster.

The idea of adapting such a network to the job by what it measures is from AutoByte (2021) and AutoSync (NeurIPS 2020).
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from ps.config import CommConfig
from tuner.features import NAMES, features, known
from tuner.network import Array, Ensemble
from tuner.predictor import Prediction, RulePredictor, Sample
from tuner.situation import Situation

__all__ = ["LEAST_SPREAD", "PACKAGED", "MetaNetwork", "Scaling"]

#: The network that is shipped.
PACKAGED = Path(__file__).with_name("data") / "metanet.npz"
FORMAT = 1
#: No file of a network is larger.
MAX_FILE_BYTES = 16 << 20
#: No prediction is more exact than this.
LEAST_SPREAD = 0.01
#: A measured speedup is never taken for more exact than this.
LEAST_NOISE = 0.005
#: Of more samples than this the newest count.
MAX_SAMPLES = 200


class Scaling(NamedTuple):
    """How columns become inputs, and how far outputs are to be trusted.

    Attributes
    ----------
    mean, deviation
        Of each column, by which inputs are standardised.
    disagreement
        The spread of the members times this is the ensemble's part of the error.
    slack
        Standard deviation of what the weights of the last layer may be wrong by: the part of the error that all
        members share, and how far samples may move these weights.
    """

    mean: Array
    deviation: Array
    disagreement: float = 1.0
    slack: float = 0.01


class MetaNetwork:
    """Predicts what candidates would bring; falls back to the closed form where too little is known.

    Parameters
    ----------
    ensemble, scaling
        What training has found.

    Raises
    ------
    ValueError
        They do not fit together, or not these features.
    """

    def __init__(self, ensemble: Ensemble, scaling: Scaling) -> None:
        ensemble.check()
        if ensemble.inputs != len(NAMES):
            raise ValueError(f"the network has {ensemble.inputs} inputs, there are {len(NAMES)} features")
        for array in (scaling.mean, scaling.deviation):
            if array.shape != (len(NAMES),) or not np.isfinite(array).all():
                raise ValueError(f"the scaling has the shape {array.shape}, or is not finite")
        if not (scaling.deviation > 0).all():
            raise ValueError("a deviation of the scaling is not above 0")
        self.ensemble = ensemble
        self.scaling = scaling
        self._rule = RulePredictor()
        self._forget()

    def _forget(self) -> None:
        members, width = self.ensemble.members, self.ensemble.width
        self._correction = np.zeros((members, width))
        #: Covariance of the last layer, as what remains of the prior: identity - explained.T @ explained, per member.
        self._explained = np.zeros((members, 0, width))

    # ------------------------------------------------------------------------------------- prediction

    def predict(self, situation: Situation, candidates: Sequence[CommConfig]) -> Prediction:
        if not known(situation) or not candidates:
            return self._rule.predict(situation, candidates)
        prior, change = self._changes(situation, candidates)
        by_member = prior - self._gain(change)
        spread = self.scaling.disagreement * by_member.std(axis=0)
        explained = np.einsum("mkw,mnw->mnk", self._explained, change)
        shared = (change**2).sum(axis=-1) - (explained**2).sum(axis=-1)
        slack = self.scaling.slack**2 * np.maximum(shared, 0).mean(axis=0)
        others = np.array([candidate != situation.config for candidate in candidates])
        return Prediction(others * by_member.mean(axis=0), others * np.sqrt(spread**2 + slack + LEAST_SPREAD**2))

    def _changes(self, situation: Situation, candidates: Sequence[CommConfig]) -> tuple[Array, npt.NDArray[np.float64]]:
        """Return the closed form's gains, and how the last hidden layer differs from that of what is in force."""
        columns, prior = features(situation, [*candidates, situation.config])
        hidden = self.ensemble.hidden((columns - self.scaling.mean) / self.scaling.deviation)
        return prior[:-1] - prior[-1], (hidden[:, :-1] - hidden[:, -1:]).astype(float)

    def _gain(self, change: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what the members add to the closed form's log step time, shape ``(members, candidates)``."""
        weights = self.ensemble.weights[-1][..., 0] + self._correction
        gain: npt.NDArray[np.float64] = np.einsum("mnw,mw->mn", change, weights)
        return gain

    # ------------------------------------------------------------------------------------- fine-tuning

    def fine_tune(self, samples: Sequence[Sample]) -> None:
        """Learn from what this job has measured: all samples that are still true, oldest first.

        What was learned before is forgotten first; no samples give the network as it was loaded.
        """
        self._forget()
        usable = [sample for sample in samples if known(sample.situation)][-MAX_SAMPLES:]
        if not usable:
            return
        members, width = self.ensemble.members, self.ensemble.width
        changes = np.empty((members, len(usable), width))
        wrong_by = np.empty((members, len(usable)))
        for number, sample in enumerate(usable):
            prior, change = self._changes(sample.situation, [sample.candidate])
            changes[:, number] = change[:, 0]
            wrong_by[:, number] = prior - self._gain(change)[:, 0] - sample.log_speedup
        noise = np.array([max(sample.noise, LEAST_NOISE) for sample in usable]) / self.scaling.slack
        for member in range(members):
            covariance = changes[member] @ changes[member].T + np.diag(noise**2)
            root = np.linalg.cholesky(covariance)
            self._correction[member] = changes[member].T @ np.linalg.solve(covariance, wrong_by[member])
            if member == 0:
                self._explained = np.empty((members, len(usable), width))
            self._explained[member] = np.linalg.solve(root, changes[member])

    # ------------------------------------------------------------------------------------------- files

    @classmethod
    def load(cls, path: Path = PACKAGED) -> MetaNetwork:
        """Return the network of a file that :meth:`save` wrote.

        Raises
        ------
        OSError
            The file, or the one with its hash, cannot be read.
        ValueError
            It is not what its hash says, was made for other features, or is no network.
        """
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        expected = hash_path(path).read_text(encoding="ascii").split()[:1]
        found = hashlib.sha256(content).hexdigest()
        if expected != [found]:
            raise ValueError(f"{path}: its SHA-256 is {found}, expected {' '.join(expected) or 'nothing'}")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls._of_arrays(path, {name: arrays[name] for name in arrays.files})

    @classmethod
    def _of_arrays(cls, path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> MetaNetwork:
        layers = sum(name.startswith("weights_") for name in arrays)
        try:
            if int(arrays["format"]) != FORMAT:
                raise ValueError(f"format {int(arrays['format'])}, expected {FORMAT}")
            if tuple(arrays["names"].tolist()) != NAMES:
                raise ValueError("it was made for other features; train it again")
            ensemble = Ensemble(
                tuple(arrays[f"weights_{number}"].astype(np.float32) for number in range(layers)),
                tuple(arrays[f"biases_{number}"].astype(np.float32) for number in range(layers - 1)),
            )
            mean, deviation = (arrays[name].astype(np.float32) for name in ("mean", "deviation"))
            disagreement, slack = float(arrays["disagreement"]), float(arrays["slack"])
            return cls(ensemble, Scaling(mean, deviation, disagreement, slack))
        except KeyError as error:
            raise ValueError(f"{path}: no array {error}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: Path) -> str:
        """Write the network, with what it has learned, and beside it its hash in the format of ``sha256sum``."""
        weights = list(self.ensemble.weights)
        weights[-1] = (weights[-1] + self._correction[..., None]).astype(np.float32)
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "format": np.array(FORMAT),
            "names": np.array(NAMES),
            "mean": self.scaling.mean,
            "deviation": self.scaling.deviation,
            "disagreement": np.array(self.scaling.disagreement),
            "slack": np.array(self.scaling.slack),
        }
        arrays.update((f"weights_{number}", array) for number, array in enumerate(weights))
        arrays.update((f"biases_{number}", array) for number, array in enumerate(self.ensemble.biases))
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        path.write_bytes(content)
        hash_path(path).write_text(f"{digest}  {path.name}\n", encoding="ascii")
        return digest


def hash_path(path: Path) -> Path:
    """Return the file in which the hash of ``path`` stands."""
    return path.with_name(path.name + ".sha256")
