"""Kernel rates of PyTorch on the same GPU: attention with each of its backends, GEMMs, layer norm. Prints Markdown."""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def median_ms(f, times=10, rounds=5):
    for _ in range(3):
        f()
    out = []
    for _ in range(rounds):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(times):
            f()
        b.record()
        b.synchronize()
        out.append(a.elapsed_time(b) / times)
    return sorted(out)[rounds // 2]


def attention():
    print("| torch attention | backend | forward TFLOP/s | backward TFLOP/s |\n|---|---|---|---|")
    for B, T, H, G, D, causal in [(64, 1024, 12, 12, 64, True), (64, 1024, 12, 12, 64, False), (4, 4096, 32, 32, 64, True),
                                  (4, 4096, 32, 8, 64, True), (4, 4096, 16, 16, 128, True), (1, 16384, 16, 16, 128, True)]:
        q = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        k = torch.randn(B, T, G, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        v = torch.randn(B, T, G, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        flops = 4 * B * H * T * T * D * (0.5 if causal else 1)
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    def forward():
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=H != G)
                    o = forward()
                    g = torch.randn_like(o)
                    f = median_ms(forward)
                    b = median_ms(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))
                print(f"| B{B} H{H}/{G} T{T} D{D}{' causal' if causal else ''} | {name} | {flops / f / 1e9:.0f} | {2.5 * flops / b / 1e9:.0f} |", flush=True)
            except RuntimeError as error:
                print(f"| B{B} H{H}/{G} T{T} D{D} | {name} | not supported: {str(error)[:60]} | |", flush=True)


def gemms():
    print("\n| torch GEMM, bf16 | TFLOP/s |\n|---|---|")
    for m, n, k in [(65536, 2304, 768), (65536, 768, 768), (65536, 3072, 768), (65536, 768, 3072), (65536, 50304, 768),
                    (16384, 6400, 1600), (16384, 8192, 2048), (8192, 8192, 8192)]:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02
        ms = median_ms(lambda: a @ b.t())
        print(f"| {m}×{n}×{k} | {2 * m * n * k / ms / 1e9:.0f} |", flush=True)


def copy():
    x = torch.empty(1 << 30, device="cuda", dtype=torch.bfloat16).normal_()
    y = torch.empty_like(x)
    ms = median_ms(lambda: y.copy_(x))
    print(f"\ntorch copy of 2 GiB: {4 * x.numel() / ms / 1e6:.0f} GB/s")


print(torch.__version__, torch.backends.cudnn.version(), torch.cuda.get_device_name())
attention()
gemms()
copy()
