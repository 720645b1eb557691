# User errors and their messages.
esp_fault_test(user_errors_test.py CLASSES UserErrors)
if(Python3_FOUND)
  add_test(NAME faults.run_files COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/run_files_test.py --files 40)
  set_tests_properties(faults.run_files PROPERTIES TIMEOUT 240 LABELS faults
    ENVIRONMENT "ESPALIER=$<TARGET_FILE:espalier>;PYTHONPATH=${CMAKE_SOURCE_DIR}/tests/app")
endif()
