;; Honest while the first byte of the rows is zero, endless otherwise: the 200th call must be bounded like the first.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (if (i32.load8_u (local.get $rows)) (then (loop $again (br $again))))
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.const 0x3f800000)))
