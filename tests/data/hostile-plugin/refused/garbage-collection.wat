(component (core module (type (struct (field i32))) (func (drop (struct.new 0 (i32.const 1))))))
