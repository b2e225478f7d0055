;; What every fixture shares: the handle table of the resource, one memory, an allocator that never frees within a
;; call, and a `load` that takes any weights. A fixture adds `forward`, and may replace `load` by defining its own
;; (then it is put after `prelude-without-load.wat`, this file up to the mark below).
(import "[export]kvasir:expert/kernel@0.1.0" "[resource-new]expert" (func $new (param i32) (result i32)))
(memory (export "memory") 1)
(global $free (mut i32) (i32.const 1024))

(func $reset (global.set $free (i32.const 1024)))

(func $allocate (export "cabi_realloc")
  (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
  (local $start i32)
  (local.set $start (i32.and (i32.add (global.get $free) (i32.const 15)) (i32.const -16)))
  (global.set $free (i32.add (local.get $start) (local.get $size)))
  (block $fits
    (br_if $fits (i32.le_u (global.get $free) (i32.mul (memory.size) (i32.const 65536))))
    (br_if $fits (i32.ne (i32.const -1) (memory.grow (i32.add (i32.const 1) (i32.shr_u (local.get $size) (i32.const 16))))))
    unreachable)
  (local.get $start))

;; Answers `count * values` floats of the bit pattern `bits`, as the 16 bytes at address 0 say.
(func $answer (param $values i32) (param $bits i32) (result i32)
  (local $list i32) (local $i i32)
  (call $reset)
  (local.set $list
    (call $allocate (i32.const 0) (i32.const 0) (i32.const 4) (i32.mul (local.get $values) (i32.const 4))))
  (block $done
    (loop $next
      (br_if $done (i32.ge_u (local.get $i) (local.get $values)))
      (i32.store (i32.add (local.get $list) (i32.shl (local.get $i) (i32.const 2))) (local.get $bits))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $next)))
  (i32.store8 (i32.const 0) (i32.const 0))
  (i32.store (i32.const 4) (local.get $list))
  (i32.store (i32.const 8) (local.get $values))
  (i32.const 0))

;; ---- load
;; Keeps the length of a row (the rows of `down`) as the expert's representation.
(func (export "kvasir:expert/kernel@0.1.0#[static]expert.load")
  (param i32 i32 i32) (param i32 i32 i32) (param $format i32) (param $hidden i32) (param $width i32)
  (param i32 i32) (param i32 i32) (param i32 i32) (result i32)
  (i32.store8 (i32.const 0) (i32.const 0))
  (i32.store (i32.const 4) (call $new (local.get $hidden)))
  (i32.const 0))
