"""The file stream: a folder of segments that can be copied as it is.

    stream.json                  who the stream is, whose, trimmed and lost ranges   identity.py
    writer.lock                  held by the one writer                              lock.py
    durable                      how far readers may read                            mark.py
    00000000000000000000.log     a segment: frames of Arrow record batches           segment.py, frame.py
    00000000000000000000.idx     a sealed segment's sparse index, a cache            index.py
    readers/*.json               how far each known table and group has come         readers.py
    requests/*                   what others ask of the writer: to trim, to erase    requests.py
    damaged/*                    damaged segments that a repair has put aside        repair.py

An append goes through stream.py, writer.py and disk.py; a read through stream.py, reader.py
and segment.py. Opening for writing starts in recovery.py; sealed segments end in tidy.py,
and are put in place anew by redact.py.
"""
