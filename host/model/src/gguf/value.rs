//! The values of GGUF keys: checked when the header is walked, decoded when they are asked for, borrowed from the file.

use super::cursor::Cursor;
use crate::error::ModelError;
use crate::limits;

/// The type of a value or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

/// A value. Arrays keep their bytes: each element was checked when the header was read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Integer(i128),
    Float(f64),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
}

/// An array of values that are no arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array<'a> {
    pub(super) kind: ValueType,
    pub(super) count: usize,
    bytes: &'a [u8],
}

impl ValueType {
    fn from_number(number: u32) -> Option<ValueType> {
        Some(match number {
            0 => ValueType::U8,
            1 => ValueType::I8,
            2 => ValueType::U16,
            3 => ValueType::I16,
            4 => ValueType::U32,
            5 => ValueType::I32,
            6 => ValueType::F32,
            7 => ValueType::Bool,
            8 => ValueType::String,
            9 => ValueType::Array,
            10 => ValueType::U64,
            11 => ValueType::I64,
            12 => ValueType::F64,
            _ => return None,
        })
    }

    /// The fewest bytes an element takes.
    fn least_bytes(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::String | ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::Array => 12,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }
}

impl<'a> Value<'a> {
    /// Read a type number and a value of it.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Value<'a>, ModelError> {
        match read_type(cursor)? {
            ValueType::Array => Ok(Value::Array(Array::read(cursor)?)),
            kind => read_scalar(cursor, kind),
        }
    }

    /// What it is, for an error.
    pub(super) fn type_name(&self) -> String {
        match self {
            Value::Integer(value) => format!("integer {value}"),
            Value::Float(value) => format!("float {value}"),
            Value::Bool(value) => format!("bool {value}"),
            Value::String(_) => "a string".to_owned(),
            Value::Array(array) => format!("an array of {} {}", array.count, array.kind.name()),
        }
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Array<'a>, ModelError> {
        let start = cursor.offset();
        let kind = read_type(cursor)?;
        if kind == ValueType::Array {
            return Err(cursor.damaged(start, "an array of arrays"));
        }
        let count_at = cursor.offset();
        let count = cursor.u64("element count")?;
        if count > limits::MAX_ARRAY_ELEMENTS {
            let limit = limits::MAX_ARRAY_ELEMENTS;
            return Err(cursor.over_limit(count_at, "number of array elements", count, limit));
        }
        if count * kind.least_bytes() > cursor.left() {
            let why = format!("{count} elements of {} cannot fit in {} bytes", kind.name(), cursor.left());
            return Err(cursor.damaged(count_at, why));
        }
        // Walk once to check every element; nothing is kept, so nothing is allocated.
        let mut walk = cursor.fork();
        for _ in 0..count {
            read_scalar(&mut walk, kind)?;
        }
        let bytes = cursor.take(walk.offset() - cursor.offset(), "array")?;
        Ok(Array { kind, count: count as usize, bytes })
    }

    /// Its elements in order.
    pub(super) fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let kind = self.kind;
        let mut cursor = Cursor::new(std::path::Path::new(""), self.bytes);
        // Every element was read once already; an error cannot happen and would end the iteration.
        (0..self.count).map_while(move |_| read_scalar(&mut cursor, kind).ok())
    }
}

fn read_type(cursor: &mut Cursor<'_>) -> Result<ValueType, ModelError> {
    let at = cursor.offset();
    let number = cursor.u32("value type")?;
    ValueType::from_number(number)
        .ok_or_else(|| cursor.damaged(at, format!("value type {number} does not exist")))
}

fn read_scalar<'a>(cursor: &mut Cursor<'a>, kind: ValueType) -> Result<Value<'a>, ModelError> {
    let at = cursor.offset();
    if kind == ValueType::String {
        return Ok(Value::String(cursor.string("string", limits::MAX_STRING_BYTES)?));
    }
    let bytes = cursor.take(kind.least_bytes() as usize, kind.name())?;
    // The integer of these bytes, zero-extended.
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let wide = u64::from_le_bytes(wide);
    Ok(match kind {
        ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => Value::Integer(i128::from(wide)),
        ValueType::I8 => Value::Integer(i128::from(wide as u8 as i8)),
        ValueType::I16 => Value::Integer(i128::from(wide as u16 as i16)),
        ValueType::I32 => Value::Integer(i128::from(wide as u32 as i32)),
        ValueType::I64 => Value::Integer(i128::from(wide as i64)),
        ValueType::F32 => Value::Float(f64::from(f32::from_bits(wide as u32))),
        ValueType::F64 => Value::Float(f64::from_bits(wide)),
        ValueType::Bool if wide <= 1 => Value::Bool(wide == 1),
        ValueType::Bool => return Err(cursor.damaged(at, format!("a bool of value {wide}"))),
        ValueType::String | ValueType::Array => unreachable!("handled by the callers"),
    })
}
