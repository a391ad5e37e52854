"""Workers that share a queue: each job goes to one of them, and what fails is tried again.

python -m examples.workers http://HOST:PORT
"""

import sys

import penstock


def main(url: str) -> None:
    with penstock.connect(url) as broker:
        broker.create_topic("jobs", exist_ok=True)
        broker.publish_many([{"job": number} for number in range(4)], topic="jobs")
        first, second = (broker.join_group("workers", "jobs") for _ in range(2))
        for name, worker in (("first", first), ("second", second)):
            for delivery in worker.fetch(3, wait_s=5):
                job = delivery.record.value["job"]
                if job == 1 and delivery.deliveries == 1:
                    print(f"{name}: job {job} failed")
                    worker.nack([delivery])
                else:
                    print(f"{name}: job {job} done (delivery {delivery.deliveries})")
                    worker.ack([delivery])


if __name__ == "__main__":
    main(sys.argv[1])
