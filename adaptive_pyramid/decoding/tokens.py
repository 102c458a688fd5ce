"""The text being written: ids known on the host, and drafted ids that may still live on a device."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Tokens:
    """Drafted token ids, growing one by one on their device without being read by the host.

    `host` is filled by whoever copies the ids anyway (the verification does). `host_ids()` copies if nobody did.
    """

    def __init__(self, ids: Iterable[int] = (), device: torch.device | str = "cpu") -> None:
        known = list(ids)
        self.host: list[int] | None = known
        self._device = torch.device(device)
        self._parts = [torch.tensor(known, dtype=torch.long, device=self._device)] if known else []
        self._length = len(known)

    def __len__(self) -> int:
        return self._length

    def append(self, token: torch.Tensor) -> None:
        """Add one drawn token, a long tensor of shape [1]."""
        self._parts.append(token)
        self._length += 1
        self.host = None

    def tensor(self, device: torch.device | str | None = None) -> torch.Tensor:
        """All ids, long, shape [m], on `device` (default: where they are)."""
        if len(self._parts) > 1:
            self._parts = [torch.cat(self._parts)]
        ids = self._parts[0] if self._parts else torch.empty(0, dtype=torch.long, device=self._device)
        return ids if device is None else ids.to(device, non_blocking=True)

    def since(self, start: int) -> torch.Tensor:
        """Ids from `start` on; the newest one is the usual case and needs no concatenation."""
        if self._parts and start == self._length - 1 and self._parts[-1].numel() == 1:
            return self._parts[-1]
        return self.tensor()[start:]

    def host_ids(self) -> list[int]:
        if self.host is None:
            self.host = self.tensor().tolist()
        return self.host


class TokenSequence:
    """Prompt and output so far. The first `verified` ids are final; a mid tier appends its own while it proposes."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self.ids: list[int] = list(prompt)
        self.prompt_length = len(self.ids)
        self.verified = len(self.ids)
        self._largest, self._scanned = -1, 0

    def __len__(self) -> int:
        return len(self.ids)

    def accept(self, tokens: Iterable[int]) -> None:
        """Add tokens that the target has verified."""
        self.ids.extend(tokens)
        self.verified = len(self.ids)

    @property
    def largest_verified(self) -> int:
        """The largest verified id, scanned once per token: a tier with a smaller vocabulary cannot embed it."""
        if self._scanned < self.verified:
            self._largest = max(self._largest, max(self.ids[self._scanned : self.verified]))
            self._scanned = self.verified
        return self._largest
