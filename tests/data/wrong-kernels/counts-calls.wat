;; Answers that depend on what was asked before.
(global $calls (mut i32) (i32.const 0x3f800000))
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (global.get $calls)))
