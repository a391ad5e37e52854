"""A server that only moves bytes: what it reaches is the ceiling of the load generator.

`python -m bench.http.sink PORT REQUEST_BYTES ANSWER_BYTES`. Every REQUEST_BYTES of a connection are
answered with 200 and a body of ANSWER_BYTES. Requests are never looked at.
"""

from __future__ import annotations

import select
import socket
import sys
from typing import Final

READ_BYTES: Final = 1 << 18


def serve(port: int, request_bytes: int, answer_bytes: int) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {answer_bytes}\r\n\r\n"
    answer = head.encode() + b"x" * answer_bytes
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    peers: dict[int, socket.socket] = {}
    taken_bytes: dict[int, int] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[sock.fileno()] = sock
                taken_bytes[sock.fileno()] = 0
                epoll.register(sock.fileno(), select.EPOLLIN)
                continue
            data = peers[fd].recv(READ_BYTES)
            if not data:
                epoll.unregister(fd)
                peers.pop(fd).close()
                continue
            count, taken_bytes[fd] = divmod(taken_bytes[fd] + len(data), request_bytes)
            if count:
                peers[fd].sendall(answer * count)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
