"""`kafka://`: a single-partition topic that any Kafka client can read, and a small companion topic.

| file | responsible for |
|---|---|
| `address.py` | the URL: brokers, topic, client options, secrets |
| `topics.py` | making the two topics, reading and judging their settings |
| `clients.py` | producers and consumers, set up and kept |
| `faults.py` | Kafka's errors as ours |
| `records.py` | events as CloudEvents records and back |
| `state.py` | who the stream is and where it ends, decided from what both topics hold |
| `partition.py` | reading committed records of one partition |
| `writer.py` | one transaction per batch |
| `reader.py` | finding and reading events |
| `known.py` | readers that reported |
| `stream.py` | the stream |
| `inspection.py` | reading everything |
"""
