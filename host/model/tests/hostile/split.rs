//! Split models whose parts do not belong together.

use super::forge::Value;
use super::header::header;
use super::{Case, Cases};

pub fn split_cases(cases: &mut Cases) {
    let part = |number: u32, count: u32, tensors: i32| {
        let mut gguf = header();
        gguf.tensors.truncate(1);
        gguf.tensors[0].name = format!("part {number}");
        gguf.set("split.no", Value::U32(number)).set("split.count", Value::U32(count));
        gguf.set("split.tensors.count", Value::I32(tensors));
        gguf.write().bytes
    };
    let mut add = |name, parts: Vec<Vec<u8>>, open, variant, says| {
        let files = (1..).zip(parts).map(|(i, bytes)| (format!("m-0000{i}-of-00002.gguf"), bytes)).collect();
        cases.0.push(Case { name, files, open, variant, says });
    };
    let first = "m-00001-of-00002.gguf";
    add("split-part-missing", vec![part(0, 2, 2)], first, "Unreadable", &["m-00002-of-00002.gguf"]);
    add(
        "split-second-opened",
        vec![part(0, 2, 2), part(1, 2, 2)],
        "m-00002-of-00002.gguf",
        "NotAModel",
        &["it is part 2 of 2; open the first part"],
    );
    add(
        "split-count-other",
        vec![part(0, 3, 2), part(1, 3, 2)],
        first,
        "Configuration",
        &["split.count = 3: must be 2"],
    );
    add(
        "split-same-part",
        vec![part(0, 2, 2), part(0, 2, 2)],
        first,
        "Configuration",
        &["split.no = 0: must be 1, counted from 0"],
    );
    add(
        "split-tensors-missing",
        vec![part(0, 2, 3), part(1, 2, 3)],
        first,
        "Configuration",
        &["split.tensors.count = 3: the 2 parts hold 2 tensors"],
    );
    let whole = {
        let mut gguf = header();
        gguf.tensors.truncate(1);
        gguf.write().bytes
    };
    add(
        "split-not-split",
        vec![whole.clone(), whole],
        first,
        "Configuration",
        &["split.count = 1: must be 2"],
    );
    let twice = |number| {
        let mut gguf = header();
        gguf.tensors.truncate(1);
        gguf.set("split.no", Value::U32(number)).set("split.count", Value::U32(2));
        gguf.set("split.tensors.count", Value::I32(2));
        gguf.write().bytes
    };
    add(
        "split-tensor-in-both",
        vec![twice(0), twice(1)],
        first,
        "Damaged",
        &["tensor first", "a second tensor of this name", "m-00002"],
    );
}
