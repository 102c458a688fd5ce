"""Offline tuning. Each command, `python -m tuning.search` for instance, is a thin command line over the rooms.

A room uses only rooms that stand behind it: report, study, research, replay, traces, tasks, terminal.
"""
