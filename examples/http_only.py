"""HTTP with nothing but the standard library: publish a batch once, however often it is sent.

python -m examples.http_only http://HOST:PORT
"""

import json
import sys
from urllib.request import Request, urlopen


def ask(method: str, url: str, body: object = None, **headers: str) -> object:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers, method=method), timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def main(broker: str) -> None:
    records = f"{broker}/v1/topics/readings/records"
    ask("PUT", f"{broker}/v1/topics/readings")
    batch = [{"payload": {"meter": 7, "kwh": kwh}} for kwh in (1, 2, 3)]
    headers = {"Content-Type": "application/json", "Idempotency-Key": "meter-7-monday"}
    for _ in range(2):  # as after a lost answer: the second time nothing is stored
        stored = ask("POST", records, batch, **headers)
        assert isinstance(stored, dict)
        print(f"stored at offsets {stored['first_offset']} to {stored['end_offset'] - 1}")
    page = ask("GET", f"{records}?from=earliest&where=payload.kwh%20%3E%201")
    assert isinstance(page, dict)
    for record in page["records"]:
        print(record["offset"], record["payload"])


if __name__ == "__main__":
    main(sys.argv[1])
