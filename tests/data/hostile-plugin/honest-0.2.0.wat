;; ---- for contract 0.2.0 of tests/wit: the count comes first. Answers 2.0 everywhere.
(func (export "kvasir:expert/kernel@0.2.0#[method]expert.forward")
  (param $hidden i32) (param $count i32) (param $rows i32) (param $length i32) (result i32)
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.const 0x40000000)))
(func (export "kvasir:expert/about@0.2.0#build") (result i32) (i32.const 7))
