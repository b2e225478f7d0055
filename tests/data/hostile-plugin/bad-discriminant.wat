;; Answers neither a value nor a fault.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (i32.store8 (i32.const 0) (i32.const 7))
  (i32.const 0))
