;; Gives a relaxed dot a second operand above 127: then processors differ, although the scan lets the instruction pass.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (call $answer (i32.mul (local.get $hidden) (local.get $count))
    (i32x4.extract_lane 0
      (i16x8.relaxed_dot_i8x16_i7x16_s
        (i8x16.splat (i32.const -128))
        (i8x16.splat (i32.const 129))))))
