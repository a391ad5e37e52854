"""A broker in a directory, without a server: what is published is on disk when publish returns.

python -m examples.embedded DIRECTORY
"""

import sys

from penstock import Broker


def main(directory: str) -> None:
    with Broker(directory) as broker:
        broker.create_topic("orders", exist_ok=True)
        for number in range(1, 4):
            broker.publish({"order": number, "total": number * 20}, topic="orders")
        broker.subscribe("billing", "orders")
        for record in broker.consume("billing", "orders", where="payload.total >= 40"):
            print(f"bill order {record.value['order']} (offset {record.offset})")


if __name__ == "__main__":
    main(sys.argv[1])
