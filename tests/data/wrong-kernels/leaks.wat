;; Takes memory with every call and frees none.
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (local $answer i32) (local $kept i32)
  (local.set $kept (global.get $free))
  (local.set $answer (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.const 0x3f800000)))
  (global.set $free (i32.add (local.get $kept) (i32.const 4096)))
  (drop (call $allocate (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 4096)))
  (local.get $answer))
