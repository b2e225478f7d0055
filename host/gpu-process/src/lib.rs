//! What the program `kvasir-gpu` does: checks WGSL kernels before and with naga, and runs them through wgpu.
