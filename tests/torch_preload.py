"""Imported by the fork server of torch_ranks.py, so that no rank pays for what most of them need.

One small compilation loads the hundreds of modules that torch.compile imports when it is first called.
"""

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel

try:
    import tqdm

    # Its monitor is a thread, which a fork does not copy.
    tqdm.tqdm.monitor_interval = 0
    import transformers.models.llama.modeling_llama  # noqa: F401
except ImportError:
    pass  # the tests that need it are skipped

# With more, the server would have threads of OpenMP too.
torch.set_num_threads(1)
torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
torch._dynamo.reset()
