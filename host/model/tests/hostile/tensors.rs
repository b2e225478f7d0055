//! Tensors that contradict the configuration, and weights that no quantiser writes.

use super::Cases;
use super::forge::{BF16, EXPERTS, HIDDEN, IQ2_XXS, Q8_0, Value, WIDTH};

pub fn tensor_cases(cases: &mut Cases) {
    let w = "WrongShape";
    cases.tensors(
        "tensor-missing.gguf",
        |g| {
            g.remove_tensor("blk.1.attn_k.weight");
        },
        "MissingTensor",
        &["tensor blk.1.attn_k.weight is missing"],
    );
    cases.tensors(
        "tensor-unknown.gguf",
        |g| {
            g.floats("blk.1.attn_k.bias", &[4], &[0.0; 4]);
        },
        "UnknownTensor",
        &["tensor blk.1.attn_k.bias", "the architecture has no such tensor"],
    );
    cases.tensors(
        "tensor-of-a-third-layer.gguf",
        |g| {
            g.floats("blk.2.attn_norm.weight", &[HIDDEN], &[0.0; 32]);
        },
        "UnknownTensor",
        &["tensor blk.2.attn_norm.weight"],
    );
    cases.tensors(
        "shape-transposed.gguf",
        |g| {
            g.find("blk.0.ffn_gate_shexp.weight").dimensions.reverse();
        },
        w,
        &["tensor blk.0.ffn_gate_shexp.weight", "shape 32 x 8, but the configuration asks for 8 x 32"],
    );
    cases.tensors(
        "shape-experts-too-few.gguf",
        |g| {
            g.find("blk.0.ffn_up_exps.weight").dimensions = vec![HIDDEN, WIDTH * EXPERTS];
        },
        w,
        &["shape 64 x 32", "asks for 2 x 32 x 32"],
    );
    cases.tensors(
        "shape-vocabulary.gguf",
        |g| {
            g.find("token_embd.weight").dimensions = vec![HIDDEN, 130, 2];
        },
        w,
        &["tensor token_embd.weight"],
    );
    cases.tensors(
        "shape-norm.gguf",
        |g| {
            g.floats("blk.0.attn_norm.weight", &[31], &[0.0; 31]);
        },
        w,
        &["tensor blk.0.attn_norm.weight", "shape 31, but the configuration asks for 32"],
    );
    cases.tensors(
        "shape-convolution.gguf",
        |g| {
            g.find("blk.0.ssm_conv1d.weight").dimensions = vec![8, 2];
        },
        w,
        &["ssm_conv1d.weight"],
    );
    cases.tensors(
        "shape-router.gguf",
        |g| {
            g.find("blk.0.ffn_gate_inp.weight").dimensions = vec![HIDDEN * 2];
        },
        w,
        &["asks for 2 x 32"],
    );
    cases.tensors(
        "format-without-arithmetic.gguf",
        |g| {
            g.tensor("blk.0.ffn_down_exps.weight", &[256, 2, 2], IQ2_XXS, vec![0; 4 * 66]);
        },
        "Unsupported",
        &["tensor blk.0.ffn_down_exps.weight", "format IQ2_XXS (GGUF type 16) is not supported yet"],
    );
    cases.tensors(
        "norm-quantised.gguf",
        |g| {
            g.tensor("output_norm.weight", &[HIDDEN], Q8_0, vec![0; 34]);
        },
        "Unsupported",
        &["tensor output_norm.weight", "format Q8_0 for a vector"],
    );
    cases.tensors(
        "row-formats-differ.gguf",
        |g| {
            let bytes = vec![0; (HIDDEN * WIDTH * EXPERTS * 2) as usize];
            g.tensor("blk.1.ffn_up_exps.weight", &[HIDDEN, WIDTH, EXPERTS], BF16, bytes);
        },
        "RowFormatsDiffer",
        &["layer 1: gate matrices read Q8 rows and up matrices Float32 rows"],
    );
    cases.tensors(
        "weight-128.gguf",
        |g| {
            let mut data = [0u8; 34].repeat(8);
            data[34 * 3 + 2 + 5] = 0x80;
            g.tensor("blk.1.ffn_gate_shexp.weight", &[HIDDEN, 8], Q8_0, data.clone());
            data.fill(0);
            g.tensor("blk.1.ffn_up_shexp.weight", &[HIDDEN, 8], Q8_0, data);
        },
        "Weights",
        &["tensor blk.1.ffn_gate_shexp.weight", "Q8_0 weight of -128 in matrix row 3"],
    );
    cases.tensors(
        "weight-nan.gguf",
        |g| {
            g.find("blk.0.post_attention_norm.weight").data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        },
        "Weights",
        &["tensor blk.0.post_attention_norm.weight", "NaN or an infinity"],
    );
    cases.tensors(
        "weight-infinite.gguf",
        |g| {
            g.find("blk.0.attn_qkv.weight").data[64..66].copy_from_slice(&0x7f80u16.to_le_bytes());
        },
        "Weights",
        &["tensor blk.0.attn_qkv.weight", "matrix row 1"],
    );
    cases.tensors(
        "decay-positive.gguf",
        |g| {
            g.floats("blk.0.ssm_a", &[2], &[-1.0, 0.5]);
        },
        "Damaged",
        &["tensor blk.0.ssm_a", "a decay rate of 0.5"],
    );
    cases.tensors(
        "alone-mtp.gguf",
        |g| {
            g.set("qwen35moe.block_count", Value::U32(3))
                .set("qwen35moe.nextn_predict_layers", Value::U32(1));
            g.tensors.retain(|tensor| !tensor.name.starts_with("blk."));
            g.floats("blk.2.nextn.enorm.weight", &[HIDDEN], &[0.0; 32]);
        },
        "MissingTensor",
        &["tensor blk.0."],
    );
}
