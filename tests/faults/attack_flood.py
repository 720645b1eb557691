"""Floods ports with connections: attack_flood.py PORT,PORT… SECONDS. Each connection sends nothing, half a handshake, an
HTTP request or random bytes, and closes. Prints the number of connections per second."""
import os
import socket
import struct
import sys
import time

RESET = struct.pack("ii", 1, 0)  # reset on close: leaves no port in TIME_WAIT
WORDS = [b"", b"", b"", b"", b"", b"", b"", b"ESPALIER", b"GET / HTTP/1.0\r\n\r\n", os.urandom(96)]


def connect(port, number):
    one = socket.socket()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.connect_ex(("127.0.0.1", port))
    words = WORDS[number % len(WORDS)]
    try:
        if words:
            one.send(words)
    except OSError:
        pass
    one.close()


def main():
    ports, end = [int(port) for port in sys.argv[1].split(",")], time.monotonic() + float(sys.argv[2])
    begun, number = time.monotonic(), 0
    while time.monotonic() < end:
        for _ in range(64):
            try:
                connect(ports[number % len(ports)], number)
            except OSError:
                pass
            number += 1
    print(int(number / (time.monotonic() - begun)))


if __name__ == "__main__":
    main()
