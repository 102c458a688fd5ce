"""How far the output may leave the target's, token by token, and the bucket that bounds it.

The drift of an emitted token is the total variation between the distribution it was drawn from and the target's there
(in greedy decoding, the log-prob regret in nats on processed scores). By the chain rule the total variation between the
distributions of whole outputs is at most min(1, E[sum of drifts]).
"""

from __future__ import annotations

import torch

from ..errors import check_number
from .sampling import real_dtype


class DriftBudget:
    """A token bucket: every emitted token adds `per_token`, a drifting one needs and takes its drift.

    Booked position by position, so that the sum of drifts is at most `per_token` * i at every prefix of i tokens; an
    output cut at EOS or a stop string keeps the promise.
    """

    # The verification sums on the device, the books are kept on the host: a hair of slack keeps rounding on our side.
    _SLACK = 1 - 1e-7

    def __init__(self, per_token: float) -> None:
        self.per_token = check_number("drift_budget", per_token, minimum=0.0)
        self.emitted = 0
        self.spent = 0.0

    @property
    def balance(self) -> float:
        return self.per_token * self.emitted - self.spent

    def grant(self, wanted: torch.Tensor, drift: torch.Tensor) -> torch.Tensor:
        """Which of the `wanted` relaxations (bool [m]) the bucket pays for, if all before them are emitted. -> bool [m]

        Stays on the device: one small chain of scalar operations per position.
        """
        exact_dtype = real_dtype(drift.device)
        drift = drift.to(exact_dtype)
        spent = torch.full((), self.spent, dtype=exact_dtype, device=drift.device)
        granted = []
        for i in range(len(drift)):
            allowance = self.per_token * (self.emitted + i + 1) * self._SLACK
            take = wanted[i] & (spent + drift[i] <= allowance)
            spent = spent + torch.where(take, drift[i], torch.zeros_like(spent))
            granted.append(take)
        return torch.stack(granted) if granted else wanted

    def book(self, drift: list[float]) -> None:
        """Enter emitted tokens with their drifts."""
        self.emitted += len(drift)
        self.spent += sum(drift)
