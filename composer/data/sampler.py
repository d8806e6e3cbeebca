"""Where a training stands in its data: counted in batches that were trained on, not in batches that were fetched."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from composer.data.collate import BatchSlice, TrainBatchSampler
from composer.data.encoding import Encoded


class ResumableBatchSampler(Sampler[BatchSlice]):
    """The shares of all epochs, from a position on.

    A pure function of the position: what was fetched ahead, and how often somebody asked, changes nothing. It has no
    end, so that a training which stops anywhere and goes on meets no edge but those of its budget. Epochs may differ in
    length: one batch is fetched ahead, so that the shares may be of the next epoch already while `epoch` is this one.
    """

    def __init__(self, order: TrainBatchSampler) -> None:
        self.order, self.epoch, self.done = order, 0, 0

    def __iter__(self) -> Iterator[BatchSlice]:
        epoch, skip = self.epoch, self.done
        while True:
            self.order.set_position(epoch, skip)
            yield from self.order
            epoch, skip = epoch + 1, 0

    def advance(self) -> bool:
        """One share has been trained on; whether it was the last of its epoch."""
        self.done += 1
        if self.done < self.order.shares_in(self.epoch):
            return False
        self.epoch, self.done = self.epoch + 1, 0
        return True

    def pairs_of(self, epoch: int) -> Encoded:
        """All pairs of an epoch."""
        return self.order.corpus.of_epoch(epoch)

    def epochs(self) -> float:
        """Epochs behind, with the fraction of this one."""
        return self.epoch + self.done / self.order.shares_in(self.epoch) if self.done else float(self.epoch)
