"""HTTP on the wire: bytes into requests, answers into bytes, WebSocket frames."""
