"""Follow a topic live, write what matters into another one, and continue there after a break.

python -m examples.alarms http://HOST:PORT
"""

import sys

import penstock

LAST = "done"


def main(url: str) -> None:
    with penstock.connect(url) as broker:
        for topic in ("machines", "alarms"):
            broker.create_topic(topic, exist_ok=True)
        # The position is what was written last: no file, no table beside the topics.
        known = broker.read("alarms")
        start = known[-1].value["offset"] + 1 if known else "earliest"
        for record in broker.stream("machines", start=start):
            if record.value == LAST:
                break
            if record.value["celsius"] > 80:
                broker.publish({"offset": record.offset, **record.value}, topic="alarms")
                print(f"alarm: machine {record.value['machine']} at {record.value['celsius']} °C")


if __name__ == "__main__":
    main(sys.argv[1])
