"""The Redis stream: one entry an event, appended by compare-and-set in a script of the server's.

| file | what is in it |
|---|---|
| `address.py` | the URL and the keys |
| `link.py` | one connection, and its errors as ours |
| `refusal.py` | what a server's refusal means, and what to do |
| `*.lua`, `scripts.py` | what must happen in one step |
| `server.py` | what the server offers, and what that makes of an append |
| `encoding.py`, `decoding.py` | Arrow to entries and back |
| `reader.py` | reading, seeking, cutting |
| `settling.py` | waiting until events are durable |
| `erasing.py` | redaction |
| `stream.py` | the stream |
| `inspection.py` | reading everything, naming damage |
"""
