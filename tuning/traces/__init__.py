"""Traces: the file format, recording with real models, and the n-gram index of a recorded text."""

from tuning.traces.format import DIVERGENCES, NOTHING, Header, TierInfo, Trace, TraceSet

__all__ = ["DIVERGENCES", "NOTHING", "Header", "TierInfo", "Trace", "TraceSet"]
