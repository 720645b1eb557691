# Rank failures: killed ranks and recovery.
function(esp_recovery_test name)
  if(Python3_FOUND)
    add_test(NAME faults.${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/${ARGN})
    set_tests_properties(faults.${name} PROPERTIES TIMEOUT 240 LABELS e2e
      ENVIRONMENT "ESPALIER=$<TARGET_FILE:espalier>;PYTHONPATH=${CMAKE_SOURCE_DIR}/tests/app")
  endif()
endfunction()
esp_recovery_test(kill kill_test.py --trials 3 --ranks 4 --seed 1 --steps-per-kill 60)
esp_recovery_test(kill_zero3 kill_test.py --trials 1 --ranks 4 --seed 2 --layout zero3 --steps-per-kill 60)
esp_recovery_test(kill_snapshot kill_test.py --trials 1 --ranks 2 --seed 3 --rung snapshot --steps-per-kill 60)
# Default settings, in runs long enough for snapshots; 20 kills with ESPALIER_TEST_LONG=1.
esp_recovery_test(kill_default kill_test.py --rung default --layout tp_pp --trials 2 --long-trials 20 --per-run 2 --ranks 4
                  --seed 4 --steps-per-kill 700 --at-any-moment 0)
# Every layout once; 500 kills over all layouts with ESPALIER_TEST_LONG=1, which also limits the p99 of the recovery time.
esp_recovery_test(kill_all kill_test.py --rung default --layout all --trials 16 --long-trials 500 --per-run 3 --ranks 4
                  --seed 5 --steps-per-kill 150)
if(Python3_FOUND)
  set_tests_properties(faults.kill_default faults.kill_all PROPERTIES TIMEOUT 7200)
  esp_run_alone_if_long(faults.kill_default faults.kill_all)
endif()
esp_recovery_test(recover_leak recover_leak_test.py --recoveries 6 --ranks 2)
