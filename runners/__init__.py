"""The four topologies, each a file, and the processes that a run is assembled from.

| topology      | batch source                                   | default mode | learner ranks | algorithms         |
|---------------|------------------------------------------------|--------------|---------------|--------------------|
| single_gpu    | `configured_source`: direct, resident, prefetch | alternate    | 1             | SAC, TD3, FlashSAC |
| double_buffer | `prefetch_source`                              | overlap      | 1             | SAC, TD3, FlashSAC |
| multi_gpu     | `configured_source`, on every rank             | overlap      | 1 to N        | SAC, TD3, FlashSAC |
| appo          | `rollout_source`                               | free         | 1 to N        | APPO, HORA         |

A fifth one is a file here with a `learner_main`, `conf/runner/<name>.yaml`, and its name, default mode and algorithms
in `offpolicy/config/{sections,rules}.py`. A new way of rows to the learner is also a writer in `collector.py`.
"""
