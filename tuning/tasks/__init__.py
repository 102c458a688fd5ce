"""Tasks: examples in public formats, and scorers. The YAML files and samples that come along are in `data`."""

from tuning.statistics import paired_bootstrap
from tuning.tasks.formats import Example
from tuning.tasks.scorers import Score
from tuning.tasks.task import FOLDER, Task, load_task, split, task_names

__all__ = ["FOLDER", "Example", "Score", "Task", "load_task", "paired_bootstrap", "split", "task_names"]
