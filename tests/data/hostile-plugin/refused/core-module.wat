;; No component at all.
(module (memory 1))
