;; The control: answers 1.0 everywhere, as many values as are due.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.const 0x3f800000)))
