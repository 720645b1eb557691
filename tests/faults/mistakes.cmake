# What people get wrong.
esp_fault_test(mistakes_test.py CLASSES Mistakes)
