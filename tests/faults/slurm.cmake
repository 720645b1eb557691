# Slurm with one node.
set(example "")
if(NOT ESP_SANITIZE)
  set(example "ESPALIER_LIBRARY=$<TARGET_FILE:espalier_collectives>" "ESPALIER_C_EXAMPLE=$<TARGET_FILE:example_all_reduce>")
endif()
esp_fault_test(slurm_test.py CLASSES Srun ENVIRONMENT ${example})
