"""Last step of the demo: counts the words of a stream with Spark.

    python -m dlog.cli.demo_words ZOOKEEPER NAMESPACE STREAM   prints a JSON object: word -> count

It is a program of its own, so that the demo's process has no JVM.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable

WORD = "[A-Za-z_][A-Za-z0-9_]*"


def count_words(lines: Iterable[bytes]) -> Counter[str]:
    """The counts that Spark must find."""
    pattern = re.compile(WORD.encode())
    return Counter(word.decode() for line in lines for word in pattern.findall(line))


def main() -> None:
    from dlog.spark import session

    zookeeper, namespace, stream = sys.argv[1:]
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    spark = session("dlog demo", **settings, **{"spark.sql.shuffle.partitions": "2"})
    reader = spark.read.format("dlog").schema("value binary")
    lines = reader.options(zookeeper=zookeeper, namespace=namespace, stream=stream).load()
    words = lines.selectExpr(f"explode(regexp_extract_all(cast(value as string), '({WORD})', 1)) as word")
    counts = {row.word: row["count"] for row in words.groupBy("word").count().collect()}
    spark.stop()
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main()
