"""Writes the Parquet file that the tests of `shardax_train::data::parquet` read: two row groups, with gaps nowhere.

    .venv/huggingface/bin/python tools/huggingface/parquet_table.py
"""

import pathlib

import pyarrow
import pyarrow.parquet

OUT = pathlib.Path(__file__).parents[2] / "crates/shardax-train/tests/golden/table.parquet"


def main():
    count = 7
    table = pyarrow.table(
        {
            "id": pyarrow.array(range(count), pyarrow.int64()),
            "score": pyarrow.array([i / 4 for i in range(count)], pyarrow.float32()),
            "small": pyarrow.array([200 + i for i in range(count)], pyarrow.uint8()),
            "good": pyarrow.array([i % 3 == 0 for i in range(count)]),
            "text": pyarrow.array(["wörd " * i for i in range(count)]),
            "tokens": pyarrow.array([list(range(i)) for i in range(count)], pyarrow.list_(pyarrow.int32())),
        }
    )
    pyarrow.parquet.write_table(table, OUT, row_group_size=4, compression="zstd", store_schema=False)
    print(OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
