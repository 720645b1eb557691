# Attacks by unauthenticated and malicious peers, and information that a job exposes to other users.
esp_fault_test(attack_test.py CLASSES Unauthenticated Authenticated Exposure OccupiedNames Encryption Hardening)
