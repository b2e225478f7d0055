//! Looks at a component's bytes before the compiler does: size limits, full validation, imports, start functions and
//! instructions that are not allowed. Nothing is compiled or run.

use wasmparser::{
    ComponentExternalKind, Data, DataKind, Encoding, FunctionBody, Operator, Parser, Payload, ValidPayload,
    Validator,
};

use crate::engine::FEATURES;
use crate::error::SandboxError;
use crate::limits::*;

/// What a component consists of, for people and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Bytes of the component.
    pub bytes: usize,
    /// Functions in all core modules.
    pub functions: usize,
    /// Core modules and nested components.
    pub modules: usize,
    /// Bytes in data segments.
    pub data_bytes: usize,
    /// How often the two relaxed dot products occur.
    pub relaxed_dots: usize,
    /// Names that the component exports.
    pub exports: Vec<String>,
}

/// Checks `component` in full and says what is in it.
pub fn inspect(component: &[u8]) -> Result<KernelFacts, SandboxError> {
    if wasmtime::Engine::detect_precompiled(component).is_some() {
        return Err(SandboxError::Precompiled);
    }
    let mut scan =
        Scan { facts: KernelFacts { bytes: component.len(), ..KernelFacts::default() }, ..Scan::default() };
    let mut validator = Validator::new_with_features(FEATURES);
    // One walk: each part is measured first, then validated, so that what is over a limit is never validated at length.
    for payload in Parser::new(0).parse_all(component) {
        let payload = payload.map_err(invalid)?;
        scan.measure(&payload)?;
        match validator.payload(&payload).map_err(invalid)? {
            ValidPayload::Func(function, body) => {
                function.into_validator(Default::default()).validate(&body).map_err(invalid)?;
                scan.function(&body)?;
            }
            ValidPayload::Ok | ValidPayload::Parser(_) | ValidPayload::End(_) => {}
        }
    }
    Ok(scan.facts)
}

#[derive(Default)]
struct Scan {
    facts: KernelFacts,
    depth: usize,
    data_segments: usize,
}

impl Scan {
    fn measure(&mut self, payload: &Payload<'_>) -> Result<(), SandboxError> {
        match payload {
            Payload::Version { encoding, range, .. } => {
                self.depth += 1;
                self.facts.modules += 1;
                within("nested modules", self.facts.modules, MAX_MODULES, range.start)?;
                within("nesting depth", self.depth, MAX_MODULE_DEPTH, range.start)?;
                if self.depth == 1 && *encoding == Encoding::Module {
                    let reason = "it is a core module; make it a component".to_owned();
                    return Err(SandboxError::Invalid { offset: range.start, reason });
                }
            }
            Payload::End(_) => self.depth = self.depth.saturating_sub(1),
            Payload::ComponentImportSection(imports) if self.depth == 1 => {
                if let Some(import) = imports.clone().into_iter().next() {
                    let name = import.map_err(invalid)?.name.name.to_owned();
                    return Err(SandboxError::Import { name });
                }
            }
            Payload::ComponentExportSection(exports) if self.depth == 1 => {
                for export in exports.clone() {
                    let export = export.map_err(invalid)?;
                    if export.kind == ComponentExternalKind::Instance {
                        self.facts.exports.push(export.name.name.to_owned());
                    }
                }
            }
            Payload::StartSection { range, .. } | Payload::ComponentStartSection { range, .. } => {
                return Err(SandboxError::StartFunction { offset: range.start });
            }
            Payload::FunctionSection(functions) => {
                self.facts.functions += functions.count() as usize;
                within("functions", self.facts.functions, MAX_FUNCTIONS, functions.range().start)?;
            }
            Payload::MemorySection(memories) => {
                for memory in memories.clone() {
                    let bytes = memory.map_err(invalid)?.initial.saturating_mul(65_536);
                    within("initial memory", bytes, MAX_INITIAL_MEMORY_BYTES, memories.range().start)?;
                }
            }
            Payload::TableSection(tables) => {
                for table in tables.clone() {
                    let elements = table.map_err(invalid)?.ty.initial;
                    within("table elements", elements, MAX_TABLE_ELEMENTS, tables.range().start)?;
                }
            }
            Payload::DataSection(segments) => {
                self.data_segments += segments.count() as usize;
                within("data segments", self.data_segments, MAX_DATA_SEGMENTS, segments.range().start)?;
                for segment in segments.clone() {
                    let Data { data, kind, range } = segment.map_err(invalid)?;
                    debug_assert!(matches!(kind, DataKind::Active { .. } | DataKind::Passive));
                    self.facts.data_bytes += data.len();
                    within("data segment bytes", self.facts.data_bytes, MAX_DATA_BYTES, range.start)?;
                }
            }
            Payload::CodeSectionEntry(body) => {
                let range = body.range();
                within("function bytes", range.len(), MAX_FUNCTION_BYTES, range.start)?;
                let mut locals = 0u32;
                for group in body.get_locals_reader().map_err(invalid)? {
                    locals = locals.saturating_add(group.map_err(invalid)?.0);
                }
                within("locals", locals, MAX_LOCALS, range.start)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Looks at every instruction of a validated function.
    fn function(&mut self, body: &FunctionBody<'_>) -> Result<(), SandboxError> {
        let mut depth = 0usize;
        for operator in body.get_operators_reader().map_err(invalid)?.into_iter_with_offsets() {
            let (operator, offset) = operator.map_err(invalid)?;
            match &operator {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                    depth += 1;
                    within("block depth", depth, MAX_BLOCK_DEPTH, offset)?;
                }
                Operator::End => depth = depth.saturating_sub(1),
                Operator::I16x8RelaxedDotI8x16I7x16S | Operator::I32x4RelaxedDotI8x16I7x16AddS => {
                    self.facts.relaxed_dots += 1;
                }
                other if is_relaxed(other) => {
                    return Err(SandboxError::RelaxedOperator { operator: text_name(other), offset });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether an operator belongs to the relaxed SIMD proposal. Asks the parser's own table, so that none is forgotten.
fn is_relaxed(operator: &Operator<'_>) -> bool {
    macro_rules! by_proposal {
        ($(@$proposal:ident $op:ident $({ $($arg:ident: $argty:ty),* })? => $visit:ident ($($ann:tt)*))*) => {
            match operator {
                $(Operator::$op { .. } => by_proposal!(is_it $proposal),)*
                _ => false,
            }
        };
        (is_it relaxed_simd) => { true };
        (is_it $other:ident) => { false };
    }
    wasmparser::for_each_operator!(by_proposal)
}

/// `I16x8RelaxedQ15mulrS` -> `i16x8.relaxed_q15mulr_s`, as the text format writes it.
fn text_name(operator: &Operator<'_>) -> String {
    let debug = format!("{operator:?}");
    let word = debug.split([' ', '{']).next().unwrap_or_default();
    let (shape, name) = word.split_at(word.find("Relaxed").unwrap_or(0));
    let mut text = format!("{}.", shape.to_ascii_lowercase());
    for (index, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn within<V: TryInto<u64>, L: TryInto<u64>>(
    what: &'static str,
    value: V,
    limit: L,
    offset: usize,
) -> Result<(), SandboxError> {
    let value = value.try_into().unwrap_or(u64::MAX);
    let limit = limit.try_into().unwrap_or(0);
    if value > limit { Err(SandboxError::OverLimit { what, value, limit, offset }) } else { Ok(()) }
}

fn invalid(error: wasmparser::BinaryReaderError) -> SandboxError {
    SandboxError::Invalid { offset: error.offset(), reason: error.message().to_owned() }
}
