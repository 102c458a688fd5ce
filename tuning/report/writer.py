"""A study as one HTML page, and its pictures beside it."""

from __future__ import annotations

from pathlib import Path

from tuning.report import plots
from tuning.terminal.progress import note


def write_report(profile: str | Path, out: str | Path | None = None, storage: str | None = None) -> Path:
    """Write the report of `profile` and return its path (default: the profile's, ending in .html).

    Raises:
        ImportError: no matplotlib. FileNotFoundError, ValueError: no profile, or no study that belongs to it.
    """
    plots.require()
    # Imported here because loading torch takes seconds, which --help and most mistakes need not wait for.
    from tuning.report import paper_decodings
    from tuning.report.sections import Sections
    from tuning.report.study_data import StudyData
    from tuning.research.paper_claims import claims

    study = StudyData.load(profile, storage)
    measured = paper_decodings.known(study)
    path = Path(out) if out is not None else study.path.with_suffix(".html")
    report = Sections(study, measured, claims(study.modelled, measured))
    html = report.html()
    folder = path.with_name(path.stem + "-pictures")
    folder.mkdir(exist_ok=True)
    for drawn in report.drawn:
        (folder / f"{drawn.name}.png").write_bytes(drawn.light)
    path.write_text(html, encoding="utf-8")
    return path


def report_after_search(profile: Path, storage: str) -> None:
    """For the end of a search: a report, or a sentence on why there is none."""
    try:
        note(f"wrote {write_report(profile, storage=storage)}")
    except ImportError as error:
        note(f"no report: {error}")
