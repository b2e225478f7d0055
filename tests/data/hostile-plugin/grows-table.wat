;; Grows a table until it gets no more; traps if it got more than the 10000 elements that a host grants.
(table $table 1 funcref)
(func (export "kvasir:expert/kernel@0.1.0#[method]expert.forward")
  (param $hidden i32) (param $rows i32) (param $length i32) (param $count i32) (result i32)
  (loop $again
    (br_if $again (i32.ne (i32.const -1) (table.grow $table (ref.null func) (i32.const 1000)))))
  (if (i32.gt_u (table.size $table) (i32.const 10000)) (then unreachable))
  (call $answer (i32.mul (local.get $hidden) (local.get $count)) (i32.const 0x3f800000)))
