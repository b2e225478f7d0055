;; Answers a list that lies outside its memory.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (i32.store8 (i32.const 0) (i32.const 0))
  (i32.store (i32.const 4) (i32.const 0x7fffff00))
  (i32.store (i32.const 8) (i32.mul (local.get $hidden) (local.get $count)))
  (i32.const 0))
