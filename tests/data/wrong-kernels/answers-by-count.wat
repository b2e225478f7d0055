;; Answers that depend on how many rows came.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.add (i32.const 0x3f800000) (local.get $count))))
